package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// converse sends a message of conversation c-1, whose handler sends another with opts, and gives
// the headers of that, if it was sent.
func converse(t *testing.T, opts ...endpoint.SendOption) (h header.Map, err error) {
	t.Helper()
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			err = s.Send(ctx, harness.ShipOrder(m), opts...)
			return nil
		})))
		r.MustSend(harness.PlaceOrder{}, endpoint.Header(header.ConversationID, "c-1"))
		synctest.Wait()
		if sent := broker.Messages("shipping"); len(sent) == 1 {
			h = sent[0].Headers
		}
	})
	return h, err
}

// A message stays in its conversation unless it starts a new conversation.
func TestAMessageStaysInItsConversation(t *testing.T) {
	for _, test := range []struct {
		name           string
		opts           []endpoint.SendOption
		want, previous string // want "" is a new one
	}{
		{"by itself", nil, "c-1", ""},
		{"the same", []endpoint.SendOption{endpoint.Header(header.ConversationID, "c-1")}, "c-1", ""},
		{"a new one", []endpoint.SendOption{endpoint.StartNewConversation()}, "", "c-1"},
		{"one of the caller's", []endpoint.SendOption{
			endpoint.StartNewConversation(), endpoint.Header(header.ConversationID, "c-2"),
		}, "c-2", "c-1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, err := converse(t, test.opts...)
			if err != nil {
				t.Fatal(err)
			}
			got, previous := h.Get(header.ConversationID), h.Get(header.PreviousConversation)
			if test.want == "" && (got == "" || got == "c-1") || test.want != "" && got != test.want || previous != test.previous {
				t.Errorf("conversation %q, previous %q", got, previous)
			}
			if related := h.Get(header.RelatedTo); related == "" {
				t.Error("the message is related to none")
			}
		})
	}
}

func TestAMessageCannotLeaveItsConversationSilently(t *testing.T) {
	h, err := converse(t, endpoint.Header(header.ConversationID, "c-2"))
	if err == nil || !strings.Contains(err.Error(), `part of conversation "c-1" and cannot be given "c-2": use StartNewConversation`) {
		t.Errorf("Send says %v", err)
	}
	if h.Len() != 0 {
		t.Error("it was sent all the same")
	}
}

func TestANewConversationOutsideAHandlerHasNoPrevious(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		harness.Start(t, harness.Sales(broker)).MustSend(harness.ShipOrder{}, endpoint.StartNewConversation())
		h := broker.Messages("shipping")[0].Headers
		if _, has := h.Lookup(header.PreviousConversation); has || h.Get(header.ConversationID) == "" {
			t.Errorf("the headers are %v", h)
		}
	})
}

// An event without a subscription arrives only if the event is sent to this endpoint.
func TestAnUnsubscribedEventArrivesOnlyIfSent(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		cfg := harness.Sales(broker, heard(&c, func(m harness.OrderPlaced) string { return m.ID }))
		cfg.Messages[1] = cfg.Messages[1].WithoutSubscription()
		r := harness.Start(t, cfg)
		if err := r.Publish(t.Context(), harness.OrderPlaced{ID: "published"}); err != nil {
			t.Fatal(err)
		}
		put(t, broker, "Shop.OrderPlaced", `{"ID":"put"}`)
		synctest.Wait()
		if got := strings.Join(c.List(), ","); got != "put" {
			t.Errorf("handled %q", got)
		}
	})
}

func TestMistakesOfMessageModifiersAreReported(t *testing.T) {
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Messages = []endpoint.Message{
		endpoint.Command[harness.PlaceOrder]("Shop.PlaceOrder").WithoutSubscription(),
		endpoint.Command[harness.ShipOrder]("Shop.ShipOrder").AtMost(0),
	}
	_, err := endpoint.New(cfg)
	for _, want := range []string{"only events are subscribed to", "AtMost(0): at least one"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
