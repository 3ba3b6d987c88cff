"""What a lock means: one public class a file."""
