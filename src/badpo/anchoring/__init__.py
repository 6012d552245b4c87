"""Anchoring: bring the rate of an attribute in a policy's answers to a target that the user chooses.

Votes do not identify the rate of an attribute in a policy's answers. The mode ``sample`` reweights the policy's choices
at sampling time. The mode ``train`` trains the policy on its own answers until it has the same tilt. Both modes of
anchoring start from a trained policy and need no votes.
"""
