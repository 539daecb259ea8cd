package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// converse sends a message of conversation c-1, whose handler sends another with opts, and gives
// the headers of that, if it was sent.
func converse(t *testing.T, opts ...endpoint.SendOption) (h header.Map, err error) {
	t.Helper()
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			err = s.Send(ctx, shipOrder(m), opts...)
			return nil
		})))
		r.send(placeOrder{}, endpoint.Header(header.ConversationID, "c-1"))
		synctest.Wait()
		if sent := broker.Messages("shipping"); len(sent) == 1 {
			h = sent[0].Headers
		}
	})
	return h, err
}

func TestAMessageStaysInItsConversationUnlessItStartsANewOne(t *testing.T) {
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		start(t, sales(broker)).send(shipOrder{}, endpoint.StartNewConversation())
		h := broker.Messages("shipping")[0].Headers
		if _, has := h.Lookup(header.PreviousConversation); has || h.Get(header.ConversationID) == "" {
			t.Errorf("the headers are %v", h)
		}
	})
}

func TestAnEventWithoutSubscriptionArrivesOnlyWhenItIsSentHere(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		cfg := sales(broker, heard(&c, func(m orderPlaced) string { return m.ID }))
		cfg.Messages[1] = cfg.Messages[1].WithoutSubscription()
		r := start(t, cfg)
		if err := r.Publish(t.Context(), orderPlaced{ID: "published"}); err != nil {
			t.Fatal(err)
		}
		put(t, broker, "Shop.OrderPlaced", `{"ID":"put"}`)
		synctest.Wait()
		if got := strings.Join(c.list(), ","); got != "put" {
			t.Errorf("handled %q", got)
		}
	})
}

func TestMistakesOfMessageModifiersAreReported(t *testing.T) {
	cfg := sales(&inmemory.Transport{})
	cfg.Messages = []endpoint.Message{
		endpoint.Command[placeOrder]("Shop.PlaceOrder").WithoutSubscription(),
		endpoint.Command[shipOrder]("Shop.ShipOrder").AtMost(0),
	}
	_, err := endpoint.New(cfg)
	for _, want := range []string{"only events are subscribed to", "AtMost(0): at least one"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
