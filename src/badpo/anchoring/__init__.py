"""Where an attribute's rate ends up, chosen: the one number per attribute that votes leave open.

At sampling time the choices are reweighted; in training an offset stage teaches the policy the tilt on its own
answers. Both start from a finished policy and need no votes.
"""
