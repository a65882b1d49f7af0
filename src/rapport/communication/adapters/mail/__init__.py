"""E-mail: SMTP out, IMAP in."""
