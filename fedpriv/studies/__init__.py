"""Many runs that answer one question. A paper's experiments (`reproduction`), the comparison of all methods at
equal verified privacy (`leaderboard`), and what both leave behind for people and programs (`results`).
"""
