"""Anchoring: bring the rate of an attribute in a policy's answers to a target that the user chooses.

The votes do not identify this rate. The mode ``sample`` reweights the policy's choices at sampling time; the mode
``train`` teaches the policy the same tilt on its own answers. Both modes of anchoring start from a finished policy and
need no votes.
"""
