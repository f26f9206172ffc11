"""Rate and concurrency limits as one worker applies them: its limiter and its held units."""
