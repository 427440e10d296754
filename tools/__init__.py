"""What the agent, a person or an MCP client can call, one module per tool."""
