package sqlserver

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]*Transport{
		"sqlserver://sa:p%40ss@h:1433?database=shop&schema=app": {
			URL: "sqlserver://sa:p%40ss@h:1433?database=shop", Schema: "app",
		},
		"sqlserver://h?lease=5s&max_tx=7&subscription_routing=R&app+name=billing&encrypt=disable": {
			URL:   "sqlserver://h?app+name=billing&encrypt=disable",
			Lease: 5 * time.Second, MaxTx: 7, SubscriptionRouting: "R",
		},
	} {
		got, err := ParseURL(url)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", url, err, diff)
		}
	}
}

func TestParseURLRefusesOptionsByNameAndShowsNoPassword(t *testing.T) {
	for url, want := range map[string]string{
		"sqlserver://sa:hunter2@h?databse=shop":  `unknown option "databse": want one of app name, `,
		"sqlserver://sa:hunter2@h?lease=5":       `option "lease": want a duration`,
		"sqlserver://sa:hunter2@h?max_tx=many":   `option "max_tx": want a number`,
		"sqlserver://sa:hunter2@h?encrypt=maybe": "URL cannot be parsed",
		"sqlserver://sa:hunter2@h:port":          "percent-encoded",
		"sqlserver:localhost":                    "no host",
		"sqlserver://sa:12?hunter2@h":            "percent-encoded",
		"sqlserver://h?schema=a&schema=b":        `option "schema" is set 2 times`,
		"mssql://sa:hunter2@h":                   `unknown scheme "mssql": want sqlserver://`,
	} {
		_, err := ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %q and no password", url, err, want)
		}
	}
}
