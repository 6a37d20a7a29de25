"""Process groups: which exist, how they are aborted and destroyed, and what torch must forget of them."""
