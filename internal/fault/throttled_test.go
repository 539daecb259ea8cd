package fault

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestPostponedCopiesKeepTheirFailures(t *testing.T) {
	h := DeferHeaders(header.Map{}, 0, Throttled{}.Add(noon).Add(noon.Add(time.Minute)))
	if got := ThrottledFailures(h, noon.Add(time.Hour)); got != (Throttled{Failures: 2, Since: noon}) {
		t.Errorf("the copy tells of %+v", got)
	}
	if got := ThrottledFailures(h, noon.Add(-time.Hour)).Since; !got.Equal(noon.Add(-time.Hour)) {
		t.Errorf("of a clock that is ahead: %v", got)
	}
	if h := DeferHeaders(h, 0, Throttled{}); h.Len() != 0 {
		t.Errorf("headers of a copy without such failures: %v", h)
	}
	h.Set(header.HoldfastThrottledSince, "yesterday")
	if got := ThrottledFailures(h, noon); got.Failures != 2 || !got.Since.Equal(noon) {
		t.Errorf("of a time that makes no sense: %+v", got)
	}
}

func TestPostponedCopiesKeepTheirCounts(t *testing.T) {
	received := header.New(header.Field{Name: header.Retries, Value: "2"}, header.Field{Name: "Mine", Value: "x"})
	h := DeferHeaders(received, 3, Throttled{Failures: 4, Since: noon})
	if ThrottledFailures(h, noon).Failures != 4 {
		t.Errorf("headers %v", h)
	}
	if DelayedRetries(h) != 2 || UsedRetries(h) != 3 || h.Get("Mine") != "x" {
		t.Errorf("headers %v", h)
	}
	if DeferHeaders(received, 0, Throttled{}).Len() != 2 {
		t.Error("none used up is written down")
	}
	for name, h := range map[string]header.Map{
		"a delayed retry": DelayHeaders(recoverability.Failure{Headers: h}, header.Map{}, time.Minute),
		"a move to error": ErrorHeaders(h, header.Map{}),
	} {
		if UsedRetries(h) != 0 || ThrottledFailures(h, noon).Failures != 0 {
			t.Errorf("after %s the cycle goes on", name)
		}
	}
	for _, nonsense := range []string{"", "-1", "x", "99999999999999999999"} {
		if n := UsedRetries(header.New(header.Field{Name: header.HoldfastUsedRetries, Value: nonsense})); n != 0 {
			t.Errorf("%q is %d", nonsense, n)
		}
	}
}
