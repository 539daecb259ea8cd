package sqs

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// sentIn returns a message that is sent so much later than now.
func sentIn(id string, later time.Duration) types.Message {
	m := came(id, 1)
	m.Attributes[sentTimestamp] = strconv.FormatInt(time.Now().Add(later).UnixMilli(), 10)
	return m
}

func browseFake(t *testing.T, f *fake) *cursor {
	t.Helper()
	c := openFake(t, f, nil)
	cur, err := c.Browse(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	return cur.(*cursor)
}

// SQS delivers in no certain order: an answer with only later messages is not the end of a listing.
func TestAListingGoesOnBehindNewMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		cur := browseFake(t, f)
		f.comes(
			[]types.Message{sentIn("old-1", -time.Minute)},
			[]types.Message{sentIn("new-1", time.Minute), sentIn("new-2", time.Minute)},
			nil,
			[]types.Message{sentIn("old-2", -time.Minute)},
		)
		var ids []string
		for {
			ms, err := cur.Next(t.Context(), 100)
			if err != nil {
				t.Fatal(err)
			}
			if len(ms) == 0 {
				break
			}
			for _, m := range ms {
				ids = append(ids, m.ID)
			}
		}
		if !slices.Equal(ids, []string{"old-1", "old-2"}) {
			t.Errorf("listed %q", ids)
		}
		for range 1000 { // messages arrive for ever
			f.comes([]types.Message{sentIn("new", time.Minute)})
		}
		cur = browseFake(t, f)
		if ms, err := cur.Next(t.Context(), 100); len(ms) > 0 || err != nil || f.unreceived() < 900 {
			t.Errorf("%d messages, %v, and %d answers left: a listing ends", len(ms), err, f.unreceived())
		}
	})
}

// A listing holds messages until the cursor is closed, and their bodies only while these are its
// last page.
func TestAListingKeepsNoBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		cur := browseFake(t, f)
		f.comes([]types.Message{sentIn("a", -time.Minute), sentIn("late", time.Minute)}, []types.Message{sentIn("b", -time.Minute)})
		var all []*transport.Message
		for range 2 {
			ms, err := cur.Next(t.Context(), 1)
			if err != nil || len(ms) != 1 {
				t.Fatal(ms, err)
			}
			all = append(all, ms...)
		}
		for _, d := range cur.held {
			if d.message.Body != nil || d.message.Headers.Len() > 0 {
				t.Errorf("the cursor keeps the body of %s", d.message.ID)
			}
		}
		if string(all[0].Body) != "a body" || all[0].Headers.Len() == 0 {
			t.Errorf("a message that the caller keeps has changed: %+v", all[0])
		}
		if err := cur.Take(t.Context(), all[1], nil); err != nil || !slices.Equal(f.deletions(), []string{"b/1"}) {
			t.Errorf("Take: %v, deleted %q", err, f.deletions())
		}
		if err := cur.Close(); err != nil {
			t.Error(err)
		}
		if _, ok := f.hides()["a/1"]; !ok || len(f.hides()) != 2 {
			t.Errorf("released %v, want all that were not taken", f.hides())
		}
	})
}

func TestAListingThatIsCutShortIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{attributes: map[string]string{"ApproximateNumberOfMessagesNotVisible": "119990"}}
		cur := browseFake(t, f)
		if _, err := cur.Next(t.Context(), 100); err == nil || !strings.Contains(err.Error(), "119990 messages are in flight") {
			t.Errorf("%v, want an error that says why the listing ends", err)
		}
	})
}
