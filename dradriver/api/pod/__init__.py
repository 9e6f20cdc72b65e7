"""The request of a pod.

annotations  a pod's annotations as a Request
resolved     the webhook's note for the controller
misspelled   annotations that are nearly ours
claim_alternatives  a request as a list of alternatives, for the scheduler alone
"""
