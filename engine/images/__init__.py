"""Images of prompts: where they come from, what is read of them, and where they stand in a text."""
