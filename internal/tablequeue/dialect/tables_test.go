package dialect

import "testing"

func TestAMemoIsBounded(t *testing.T) {
	var m Memo[int]
	for i := range 3 * maxMemo {
		if got := m.Add(i, i); got != i {
			t.Fatalf("entry %d, want %d", got, i)
		}
		if got := m.Add(i, -1); got != i {
			t.Fatalf("the entry %d was replaced by %d", i, got)
		}
	}
	if n := m.Len(); n == 0 || n > maxMemo {
		t.Errorf("%d entries, want some, and at most %d", n, maxMemo)
	}
	m.Set("a", 7)
	if got, ok := m.Load("a"); !ok || got != 7 {
		t.Errorf("entry %d, %v", got, ok)
	}
	if _, ok := m.Load(0); ok {
		t.Error("the first entry is still there")
	}
}
