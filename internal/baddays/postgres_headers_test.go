package baddays_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
)

// postgresHeaders inserts rows whose headers cannot be decoded, one of them with very many.
func postgresHeaders(t *testing.T) outcome {
	r := startRelays(t, endpoint.ReceiveOnly, "sink")
	var many strings.Builder
	for i := range 112_000 {
		fmt.Fprintf(&many, `,"h%d":""`, i)
	}
	bad := []string{`{"Tenant":{"id":1},"Kept":"yes"}`, `no JSON`, `{` + many.String()[1:] + `}`}
	stop := r.feed(0, "")
	r.wait("it works", 30*time.Second, func() bool { return r.rows("sink") > 100 })
	for _, headers := range bad {
		r.exec(`INSERT INTO work (headers, body) VALUES ($1, '')`, headers)
	}
	r.wait("the bad rows are in the error queue", 30*time.Second, func() bool { return r.rows("error") >= len(bad) })
	sent := stop()
	r.wait("all messages are handled", time.Minute, func() bool { return r.rows("work") == 0 })
	if n, failed := r.rows("sink"), r.rows("error"); n != sent["sink"] || failed != len(bad) || r.retried.Load() != 0 {
		t.Errorf("%d of %d messages in sink, %d in the error queue, %d attempts that were not the first", n, sent["sink"], failed, r.retried.Load())
	}
	for _, want := range bad {
		var n int
		err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM error WHERE headers::json ->> $1 = $2`, header.UndecodableHeaders, want).Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("%d rows of the error queue hold the headers %.40s (%v), want 1", n, want, err)
		}
	}
	return outcome{message: "in the error queue, with the text of their headers", neighbours: fmt.Sprintf("all %d handled once", sent["sink"])}
}
