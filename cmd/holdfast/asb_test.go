package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// onBus has commands work on a namespace of the test's own.
func onBus(t *testing.T) (*brokertest.ServiceBusNamespace, *admin.Client) {
	t.Helper()
	n := brokertest.OwnServiceBus(t)
	setenv(t, transportVar, n.URL())
	return n, busAdmin(t, n)
}

func busAdmin(t *testing.T, n *brokertest.ServiceBusNamespace) *admin.Client {
	t.Helper()
	client, err := admin.NewClientFromConnectionString(n.ConnectionString, &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: n.AdminTransport()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAnEndpointIsCreatedAndVerifiedOnServiceBus(t *testing.T) {
	t.Parallel()
	_, client := onBus(t)
	endpoint := []string{"sales", "--audit", "audit", "--instance", "7"}
	create, verify := append([]string{"endpoint", "create"}, endpoint...), append([]string{"endpoint", "verify"}, endpoint...)
	r, errs := provision(t, exitFailed, verify...)
	if r.OK || len(r.Found) != 5 || !strings.Contains(errs, `endpoint "sales": 5 missing`) {
		t.Errorf("nothing there: %+v, %s", r, errs)
	}
	if r, _ = provision(t, exitOK, append(create, "--dry-run")...); !r.DryRun || len(r.Created) != 5 {
		t.Errorf("dry run: %+v", r)
	}
	if r, _ = provision(t, exitOK, create...); !r.OK || len(r.Created) != 5 {
		t.Errorf("create: %+v", r)
	}
	if r, _ = provision(t, exitOK, create...); !r.OK || len(r.Created) != 0 {
		t.Errorf("create again: %+v", r)
	}
	if out := must(t, "", verify...); out != "endpoint \"sales\": all is there, as it should be\n" {
		t.Errorf("verify prints %q", out)
	}
	found, err := client.GetQueue(t.Context(), "sales", nil)
	if err != nil {
		t.Fatal(err)
	}
	found.MaxDeliveryCount = to.Ptr[int32](3)
	if _, err := client.UpdateQueue(t.Context(), "sales", found.QueueProperties, nil); err != nil {
		t.Fatal(err)
	}
	r, _ = provision(t, exitFailed, verify...)
	if len(r.Found) != 1 || r.Found[0].State != transport.Differs || !strings.Contains(r.Found[0].Detail, "after 3 deliveries") {
		t.Errorf("with few deliveries: %+v", r)
	}
}

func TestAnEndpointIsSubscribedOnServiceBus(t *testing.T) {
	_, client := onBus(t)
	must(t, "", "queues", "create", "sales")
	setenv(t, transportVar, getenv(t)(transportVar)+"&topic=Shop.Bill%3Dbills&shared_topic=bills&no_hierarchies=true")
	must(t, "", "endpoint", "subscribe", "sales", "Shop.OrderPlaced", "Shop.Bill")
	for topic, rule := range map[string]string{"Shop.OrderPlaced": "$Default", "bills": "Shop.Bill"} {
		found, err := client.GetRule(t.Context(), topic, "sales", rule, nil)
		if err != nil || found == nil {
			t.Errorf("rule %q of topic %q: %v, %v", rule, topic, found, err)
		}
	}
	must(t, "", "endpoint", "create", "sales")
	verify := []string{"endpoint", "verify", "sales", "--event", "Shop.OrderPlaced", "--event", "Shop.Bill"}
	if r, _ := provision(t, exitOK, verify...); !r.OK {
		t.Errorf("subscribed: %+v", r)
	}
	must(t, "", "endpoint", "unsubscribe", "sales", "Shop.OrderPlaced")
	if _, err := client.DeleteRule(t.Context(), "bills", "sales", "Shop.Bill", nil); err != nil {
		t.Fatal(err)
	}
	want := []transport.Finding{
		{State: transport.Missing, Kind: "subscription", Name: "Shop.OrderPlaced/sales"},
		{State: transport.Missing, Kind: "rule", Name: "bills/sales/Shop.Bill"},
	}
	if r, _ := provision(t, exitFailed, verify...); !slices.Equal(r.Found, want) {
		t.Errorf("unsubscribed: %+v, want %+v", r.Found, want)
	}
	if found, err := client.GetSubscription(t.Context(), "Shop.OrderPlaced", "sales", nil); err != nil || found != nil {
		t.Errorf("after unsubscribing: %v, %v", found, err)
	}
}

func TestDeadLettersAreListedReturnedAndDiscarded(t *testing.T) {
	t.Parallel()
	_, client := onBus(t)
	for name, properties := range map[string]*admin.QueueProperties{
		"sales": {DeadLetteringOnMessageExpiration: to.Ptr(true), DefaultMessageTimeToLive: to.Ptr("PT0.2S")}, "other": nil,
	} {
		if _, err := client.CreateQueue(t.Context(), name, &admin.CreateQueueOptions{Properties: properties}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"one", "two", "three"} {
		must(t, `{"id":"`+id+`"}`, "send", "--to", "sales", "--type", "Shop.Order", "--header", "NServiceBus.MessageId="+id)
	}
	waitForDeadLetters(t, client, 3)
	out := must(t, "", "asb", "dead-letters", "list", "sales", "--class", "TTLExpiredException")
	if !strings.Contains(out, "one") || !strings.Contains(out, "The message expired") || !strings.Contains(out, "3 messages") {
		t.Errorf("list prints\n%s", out)
	}
	must(t, "", "asb", "dead-letters", "retry", "sales", "two", "--to", "other")
	if out := must(t, "", "queues", "peek", "other", "--json"); !strings.Contains(out, `"id":"two"`) || strings.Contains(out, "TTLExpired") {
		t.Errorf("returned: %s", out)
	}
	must(t, "", "asb", "dead-letters", "purge", "sales", "one")
	if out := must(t, "", "asb", "dead-letters", "list", "sales", "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"id":"three"`) {
		t.Errorf("left: %s", out)
	}
	if code, _, errs := call(t, "", "asb", "dead-letters", "purge", "sales"); code != exitUsage || !strings.Contains(errs, "--all") {
		t.Errorf("purge of nothing in particular: exit code %d, %s", code, errs)
	}
	must(t, "", "asb", "dead-letters", "discard", "sales", "--all")
	if out := must(t, "", "asb", "dead-letters", "list", "sales"); !strings.Contains(out, "no messages") {
		t.Errorf("after all: %s", out)
	}
}

// waitForDeadLetters asks until the broker has so many.
func waitForDeadLetters(t *testing.T, client *admin.Client, want int32) {
	t.Helper()
	until(t, fmt.Sprintf("%d dead letters", want), func() (any, bool) {
		found, err := client.GetQueueRuntimeProperties(t.Context(), "sales", nil)
		if err != nil {
			t.Fatal(err)
		}
		return found.DeadLetterMessageCount, found.DeadLetterMessageCount == want
	})
}

func TestServiceBusCommandsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	n, _ := onBus(t)
	restricted, astray := *n, *n
	astray.Admin = "nowhere"
	restricted.ConnectionString = n.Control.Restricted("Send", "Listen")
	must(t, "", "endpoint", "create", "sales")
	for _, test := range []struct {
		url  string
		args []string
		code int
		text string
	}{
		{n.URL(), []string{"endpoint", "create"}, exitUsage, "the name of one endpoint"},
		{n.URL(), []string{"endpoint", "subscribe", "sales"}, exitUsage, "event types"},
		{n.URL() + "&topic=T", []string{"endpoint", "subscribe", "sales", "T"}, exitUsage, "want TYPE=TOPIC"},
		{n.URL(), []string{"asb", "dead-letters", "list", "missing"}, exitFailed, "no such queue"},
		{"amqp://localhost", []string{"asb", "dead-letters", "list", "sales"}, exitUsage, "give one with sb://"},
		{restricted.URL(), []string{"endpoint", "verify", "sales"}, exitFailed, "3 that cannot be compared"},
		{restricted.URL(), []string{"endpoint", "create", "other"}, exitFailed, "no right to manage"},
		{restricted.URL(), []string{"endpoint", "subscribe", "sales", "T"}, exitFailed, "right to manage"},
		{n.URL(), []string{"endpoint", "subscribe", "missing", "T"}, exitFailed, "no such queue: holdfast endpoint create"},
		{astray.URL(), []string{"endpoint", "verify", "sales"}, exitFailed, "no URL"},
	} {
		code, _, errs := call(t, "", append([]string{"--transport", test.url}, test.args...)...)
		if code != test.code || !strings.Contains(errs, test.text) {
			t.Errorf("%q: exit code %d, want %d; %s, want %q in it", test.args, code, test.code, errs, test.text)
		}
	}
}

// A dead letter that Service Bus forwards to an error queue has its failure in the broker's
// properties only. What the headers say comes first.
func TestAForwardedDeadLetterIsAFailure(t *testing.T) {
	t.Parallel()
	m := &transport.Message{ID: "one", Native: map[string]string{
		asb.PropertyDeadLetterSource: "sales", asb.PropertyDeadLetterReason: "MaxDeliveryCountExceeded", asb.PropertyDeadLetterDescription: "ten times",
	}}
	if e := deadLetter(m); e.Queue != "sales" || e.Class != "MaxDeliveryCountExceeded" || e.Error != "ten times" {
		t.Errorf("entry %+v", e)
	}
	m.Headers.Set(header.FailedQ, "billing")
	m.Headers.Set(header.ExceptionType, "System.TimeoutException")
	m.Headers.Set(header.ExceptionMessage, "too late")
	if e := deadLetter(m); e.Queue != "billing" || e.Class != "System.TimeoutException" || e.Error != "too late" {
		t.Errorf("entry with headers of a failure %+v", e)
	}
}
