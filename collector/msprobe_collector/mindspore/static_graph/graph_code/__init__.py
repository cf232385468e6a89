"""What MindSpore compiles into graphs. The compiler looks names up in the module, so MindSpore is imported there."""
