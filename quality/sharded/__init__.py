"""Small sharded trainings with the run on one rank that each equals, and public bugs planted in them."""
