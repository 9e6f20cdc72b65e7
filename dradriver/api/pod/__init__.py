"""The request of a pod.

annotations  reads a pod's annotations as a Request
resolved     the webhook's note for the controller
misspelled   annotations whose names are nearly ours
claim_alternatives  a request as a list of alternatives, for pods that only the scheduler places
"""
