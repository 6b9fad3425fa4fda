"""The host reactor: does for Watchbill what only the host may do, and nothing that its operator did not allow."""
