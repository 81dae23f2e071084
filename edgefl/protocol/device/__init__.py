"""The client's side of the protocol: `ClientMachine` takes events and returns actions, like `RoundServer`."""
