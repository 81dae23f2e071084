"""FedMix: a mixture of experts with a variational gate on each client."""
