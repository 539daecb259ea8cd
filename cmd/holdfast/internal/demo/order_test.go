package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const orders = "../../../../examples/orders.jsonl"

func TestAmountsAreExact(t *testing.T) {
	for text, want := range map[string]Amount{"0": 0, "1": 100, "1.5": 150, "1072.85": 107285, "-8.15": -815, "0.10": 10} {
		var a Amount
		if err := json.Unmarshal([]byte(text), &a); err != nil || a != want {
			t.Errorf("%s is read as %d (%v), want %d", text, a, err, want)
		}
		back, err := json.Marshal(a)
		var again Amount
		if perr := json.Unmarshal(back, &again); err != nil || perr != nil || again != want {
			t.Errorf("%s is written as %s", text, back)
		}
	}
	for _, text := range []string{"1.005", `"1.50"`, "1e3", "true", "null", "99999999999999999999"} {
		var a Amount
		if err := json.Unmarshal([]byte(text), &a); err == nil {
			t.Errorf("%s is read as %v, want an error", text, a)
		}
	}
}

func TestEveryWayOfBeingMalformedIsNoticed(t *testing.T) {
	const sound = `{"orderId":"A-1","customer":{"id":"C-1"},"placedAt":"2026-03-02T07:00:21+01:00","currency":"EUR",` +
		`"items":[{"sku":"S","quantity":2,"unitPrice":1.25}],"total":2.50}`
	if _, err := (Line{Text: []byte(sound)}).order(); err != nil {
		t.Fatalf("a sound order: %v", err)
	}
	for what, change := range map[string][2]string{
		"orderId is missing":     {`"A-1"`, `""`},
		"customer.id is missing": {`"C-1"`, `""`},
		"placedAt is missing":    {`"placedAt"`, `"when"`},
		"not one that":           {`"EUR"`, `"XBT"`},
		"there are no items":     {`{"sku":"S","quantity":2,"unitPrice":1.25}`, ``},
		"item 1: quantity -2":    {`"quantity":2`, `"quantity":-2`},
		"item 1: quantity 2":     {`"unitPrice":1.25`, `"unitPrice":-1.25`},
		"total is 2.51":          {`2.50`, `2.51`},
		"two decimals":           {`1.25`, `1.255`},
		"cannot unmarshal":       {`"quantity":2`, `"quantity":"two"`},
		"unexpected end":         {`2.50}`, `2.50`},
	} {
		text := strings.Replace(sound, change[0], change[1], 1)
		if _, err := (Line{Text: []byte(text)}).order(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v, want %q", text, err, what)
		}
	}
}

func TestInputKeepsLineNumbersAndPassesOverEmptyLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "in.jsonl")
	write(t, file, "one\r\n\n  \ntwo\nthree")
	in, err := ReadInput(file, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Line{{1, []byte("one")}, {4, []byte("two")}, {5, []byte("three")}}
	if diff := cmp.Diff(want, in.Lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	two, err := ReadInput(file, 2)
	if err != nil || len(two.Lines) != 2 || two.Hash == in.Hash {
		t.Errorf("with a limit of 2: %d lines, %v, hash as without: %v", len(two.Lines), err, two.Hash == in.Hash)
	}
	write(t, file, "\n\n")
	if _, err := ReadInput(file, 0); err == nil {
		t.Error("a file of empty lines is no error")
	}
}

// The orders have all kinds of outcomes.
func TestExampleHasAThousandOrders(t *testing.T) {
	in, err := ReadInput(orders, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(in.malformed()); len(in.Lines) != 1000 || n < 15 || n > 30 {
		t.Errorf("%d lines, %d malformed: want 1000 and about 20", len(in.Lines), n)
	}
	seen := map[string]map[int]int{sales: {}, billing: {}, shipping: {}}
	for _, line := range in.Lines {
		if o, err := line.order(); err == nil {
			for name := range seen {
				seen[name][failsOf(name, o.OrderID)]++
			}
		}
	}
	for _, name := range []string{billing, shipping} {
		for _, f := range []int{succeeds, failsOnce, failsForAWhile, failsAlways} {
			if seen[name][f] == 0 {
				t.Errorf("no order has outcome %d at %s", f, name)
			}
		}
	}
}

func TestOutcomesDecideWhichAttemptFails(t *testing.T) {
	ids := map[int]string{}
	for i := range 2000 {
		id := string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		ids[failsOf(billing, id)] = id
	}
	for f, fails := range map[int][]bool{ // first attempt, second, after one delay, after two
		succeeds:       {false, false, false, false},
		failsOnce:      {true, false, false, false},
		failsForAWhile: {true, true, false, false},
		failsAlways:    {true, true, true, true},
	} {
		for i, at := range [][2]int{{1, 0}, {2, 0}, {1, 1}, {1, 2}} {
			if err := failure(billing, ids[f], at[0], at[1]); (err != nil) != fails[i] {
				t.Errorf("outcome %d at attempt %d after %d delays: %v, want failing %v", f, at[0], at[1], err, fails[i])
			}
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
