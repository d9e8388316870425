"""Stores of D on the CPU: through epilogue stages, and from registers or shared memory."""
