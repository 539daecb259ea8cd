package sqlite

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]*Transport{
		"sqlite:orders.db":                  {Path: "orders.db"},
		"SQLITE://orders.db":                {Path: "orders.db"},
		"sqlite:/var/lib/orders.db":         {Path: "/var/lib/orders.db"},
		"sqlite:///var/orders.db":           {Path: "/var/orders.db"},
		"sqlite:o.db?lease=5s&relaxed=true": {Path: "o.db", Lease: 5 * time.Second, Relaxed: true},
	} {
		got, err := ParseURL(url)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", url, err, diff)
		}
	}
}

func TestParseURLRefusesOptionsByNameAndShowsNoPassword(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:":                 "no file",
		"sqlite:o.db?mode=ro":     `unknown option "mode": want one of lease, relaxed`,
		"sqlite:o.db?lease=5":     `option "lease": want a duration`,
		"sqlite:o.db?relaxed=5":   `option "relaxed": want true or false`,
		"sqlite:o.db?lease=%5":    "not a valid URL",
		"file:orders.db?hunter=2": "unknown scheme",
	} {
		_, err := ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %q and no password", url, err, want)
		}
	}
}
