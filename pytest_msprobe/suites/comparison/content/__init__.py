"""Two runs compared by what they hold, whatever their calls are named."""
