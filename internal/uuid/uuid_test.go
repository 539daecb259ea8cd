package uuid

import (
	"regexp"
	"testing"
	"time"
)

func TestNewIsAVersion7OfTheTime(t *testing.T) {
	form := regexp.MustCompile(`^0192ad2d-3000-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	at := time.UnixMilli(0x0192ad2d3000)
	first, second := New(at), New(at)
	if !form.MatchString(first) || !form.MatchString(second) || first == second {
		t.Errorf("New returned %q and %q, want two of the form %v", first, second, form)
	}
}
