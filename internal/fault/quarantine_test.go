package fault

import (
	"testing"

	"github.com/holdfast-go/holdfast/header"
)

func TestQuarantineHeadersAreTakenAwayAgain(t *testing.T) {
	h := header.New(header.Field{Name: "a", Value: "1"})
	marked := QuarantineHeaders(h, "sales", 7)
	got, queue, attempts := LeaveQuarantine(marked)
	if got.Len() != 1 || got.Get("a") != "1" || queue != "sales" || attempts != 7 {
		t.Errorf("%v, %q, %d", got, queue, attempts)
	}
	if h.Len() != 1 || marked.Len() != 3 {
		t.Errorf("headers were changed: %v, %v", h, marked)
	}
	for _, bad := range []string{"", "x", "-1", "0", "99999999999999999999", "1048577"} {
		marked.Set(header.HoldfastQuarantineAttempts, bad)
		if _, _, attempts := LeaveQuarantine(marked); attempts != 1 {
			t.Errorf("%q attempts are %d", bad, attempts)
		}
	}
}
