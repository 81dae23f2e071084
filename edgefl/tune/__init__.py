"""Search for the options of Adaptive Expert Models, stage by stage, each with what the former ones found."""
