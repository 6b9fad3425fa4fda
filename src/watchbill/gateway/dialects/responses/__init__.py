"""OpenAI's newer dialect: /v1/responses, made here for every engine."""
