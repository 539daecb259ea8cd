package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]*Transport{
		"postgres://u@h/db?schema=app&sslmode=disable": {URL: "postgres://u@h/db?sslmode=disable", Schema: "app"},
		"postgresql://h/db":                            {URL: "postgresql://h/db"},
		"postgres://h/a%40b?user=u@h":                  {URL: "postgres://h/a%40b?user=u%40h"},
		"postgres://h/db?lease=5s&max_tx=7&pooled=true&subscription_routing=R&pool_max_conns=9&statement_timeout=5000": {
			URL:   "postgres://h/db?pool_max_conns=9&statement_timeout=5000",
			Lease: 5 * time.Second, MaxTx: 7, Pooled: true, SubscriptionRouting: "R",
		},
	} {
		got, err := ParseURL(url)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", url, err, diff)
		}
	}
}

func TestParseURLRefusesOptionsByNameAndShowsNoPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:hunter2@h/db?shema=app":       `unknown option "shema": want one of application_name, `,
		"postgres://u:hunter2@h/db?enable_sort=off": `unknown option "enable_sort"`,
		"postgres://u:hunter2@h/db?lease=5":         `option "lease": want a duration`,
		"postgres://u:hunter2@h/db?max_tx=many":     `option "max_tx": want a number`,
		"postgres://u:hunter2@h/db?pooled=perhaps":  `option "pooled": want true or false`,
		"postgres://u:hunter2@h/db?sslmode=perhaps": "URL cannot be parsed",
		"postgres://u:hunter2@h:port/db":            "percent-encoded",
		"postgres://u:hunter%2@h/db":                "percent-encoded",
		"postgres:db":                               "no host",
		"postgres://u:12?hunter2@h/db":              "percent-encoded",
		"postgres://u:12?a&hunter2=5&@h/db":         "percent-encoded",
		"postgres://u:12/hunter2@h/db":              "percent-encoded",
		"postgres://u:12#hunter2@h/db":              "percent-encoded",
		"postgres://u@h/db?schema=a%zz":             "the options after ? cannot be parsed",
		"postgres://u@h/db?schema=a;lease=5s":       "the options after ? cannot be parsed",
		"postgres://u@h/db?schema=a&schema=b":       `option "schema" is set 2 times`,
		"postgres://u@h/db?sslmode=x&sslmode=y":     `option "sslmode" is set 2 times`,
		"mysql://u:hunter2@h/db":                    `unknown scheme "mysql": want postgres://`,
	} {
		_, err := ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %q and no password", url, err, want)
		}
	}
}
