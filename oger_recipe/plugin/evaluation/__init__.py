"""The process of `oger eval`: a model in vLLM that answers benchmarks."""
