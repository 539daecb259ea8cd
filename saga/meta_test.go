package saga

import "testing"

// A message without a token is no time-out, also if a record has a time-out without one.
func TestAnEmptyTokenIsNoTimeout(t *testing.T) {
	m := meta{Timeouts: map[string]string{"late": ""}}
	if name, ok := m.timeoutOf(""); ok {
		t.Errorf("the time-out %q has the empty token", name)
	}
	m.Timeouts["late"] = "x"
	if name, ok := m.timeoutOf("x"); !ok || name != "late" {
		t.Errorf("the token is that of %q, %v", name, ok)
	}
}
