"""What a newcomer can try next; the daemon prints it once it is up, before its ready line."""

__all__ = ["next_steps"]


def next_steps(url: str, model: str, command: str) -> tuple[str, str, str]:
    """Three commands that work as they stand here."""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f'{command} chat "Why is the sky blue?"',
        f"{command} status",
    )
