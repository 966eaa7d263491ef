"""weightfs for engines: what runs inside of them. See weightfs.vllm."""
