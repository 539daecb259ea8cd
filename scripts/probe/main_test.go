package main

import (
	"strings"
	"testing"
	"time"
)

func TestErrorsTellWhyButNoPassword(t *testing.T) {
	for u, want := range map[string]string{
		"amqp://u:secret@127.0.0.1:1/":      "connection refused",
		"postgres://u:secret@127.0.0.1:1/d": "refused",
		"redis://u:secret@127.0.0.1/":       "neither amqp:// nor postgres://",
		"amqp://u:secret@[/":                "cannot be parsed",
	} {
		found, err := first(t.Context(), []string{u}, 0, time.Minute)
		if err == nil {
			t.Errorf("%s answers: %s", u, found)
			continue
		}
		if text := err.Error(); !strings.Contains(text, want) || strings.Contains(text, "secret") {
			t.Errorf("%s: error %q, want one about %q without the password", u, text, want)
		}
	}
}
