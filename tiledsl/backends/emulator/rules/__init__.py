"""What each op does to a cohort, one file a family."""
