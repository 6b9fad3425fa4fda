"""Files and batches in OpenAI's dialect, message batches in Anthropic's."""
