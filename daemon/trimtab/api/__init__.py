"""HTTP over our sockets: OpenAI's routes for inference, and the control routes."""
