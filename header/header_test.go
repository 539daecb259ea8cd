package header_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
)

type fields = []header.Field

func listed(m header.Map) fields {
	var all fields
	for name, value := range m.All() {
		all = append(all, header.Field{Name: name, Value: value})
	}
	return all
}

func same(t *testing.T, m header.Map, want ...header.Field) {
	t.Helper()
	if diff := cmp.Diff(want, listed(m)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if m.Len() != len(want) {
		t.Errorf("Len = %d, want %d", m.Len(), len(want))
	}
}

func TestNewKeepsTheOrderAndTheLastOfAName(t *testing.T) {
	given := fields{{"B", "1"}, {"A", "2"}, {"B", "3"}, {"b", "4"}}
	m := header.New(given...)
	same(t, m, header.Field{Name: "B", Value: "3"}, header.Field{Name: "A", Value: "2"}, header.Field{Name: "b", Value: "4"})
	given[1].Value = "changed"
	if got := m.Get("A"); got != "2" {
		t.Errorf("the Map changed with the slice it was made of: %q", got)
	}
}

func TestTheZeroMapIsEmptyAndReady(t *testing.T) {
	var m header.Map
	same(t, m)
	m.Del("A")
	if m.Get("A") != "" || m.Size() != 0 || m.Clone().Len() != 0 {
		t.Error("the zero Map has something")
	}
	m.Set("A", "1")
	same(t, m, header.Field{Name: "A", Value: "1"})
}

func TestLookupTellsEmptyFromMissing(t *testing.T) {
	m := header.New(header.Field{Name: "Empty"})
	if v, ok := m.Lookup("Empty"); v != "" || !ok {
		t.Errorf("Lookup of an empty header = %q, %v", v, ok)
	}
	if v, ok := m.Lookup("empty"); v != "" || ok {
		t.Errorf("Lookup in another case = %q, %v, want that it is missing", v, ok)
	}
}

func TestSetKeepsThePlaceOfAHeader(t *testing.T) {
	m := header.New(fields{{"A", "1"}, {"B", "2"}}...)
	m.Set("A", "3")
	m.Set("C", "4")
	same(t, m, fields{{"A", "3"}, {"B", "2"}, {"C", "4"}}...)
}

func TestSetDefaultLeavesAHeaderAlone(t *testing.T) {
	m := header.New(fields{{"A", ""}}...)
	m.SetDefault("A", "1")
	m.SetDefault("B", "2")
	same(t, m, fields{{"A", ""}, {"B", "2"}}...)
}

func TestDelKeepsTheOrder(t *testing.T) {
	for _, name := range []string{"A", "B", "C", "missing"} {
		m := header.New(fields{{"A", "1"}, {"B", "2"}, {"C", "3"}}...)
		m.Del(name)
		var want fields
		for _, f := range (fields{{"A", "1"}, {"B", "2"}, {"C", "3"}}) {
			if f.Name != name {
				want = append(want, f)
			}
		}
		same(t, m, want...)
	}
}

func TestAllStopsWhenToldTo(t *testing.T) {
	m := header.New(fields{{"A", "1"}, {"B", "2"}}...)
	for name := range m.All() {
		if name != "A" {
			t.Errorf("it went on to %q", name)
		}
		break
	}
	if got := maps.Collect(m.All()); len(got) != 2 {
		t.Errorf("collected %v", got)
	}
}

func TestAClonesChangesAreItsOwn(t *testing.T) {
	for name, change := range map[string]func(*header.Map){
		"Set":        func(m *header.Map) { m.Set("A", "changed") },
		"Set new":    func(m *header.Map) { m.Set("C", "new") },
		"Del":        func(m *header.Map) { m.Del("A") },
		"SetDefault": func(m *header.Map) { m.SetDefault("C", "new") },
	} {
		t.Run(name, func(t *testing.T) {
			want := fields{{"A", "1"}, {"B", "2"}}
			m := header.New(want...)
			clone := m.Clone()
			change(&clone)
			same(t, m, want...)

			clone = m.Clone()
			change(&m)
			same(t, clone, want...)
		})
	}
}

func TestSizeCountsNamesAndValues(t *testing.T) {
	m := header.New(fields{{"A", "12"}, {"Bé", "€"}}...)
	if got, want := m.Size(), len("A12Bé€"); got != want {
		t.Errorf("Size = %d, want %d", got, want)
	}
}

func TestReserveMakesRoom(t *testing.T) {
	names := make([]string, 12)
	for i := range names {
		names[i] = fmt.Sprint("Name", i)
	}
	var m header.Map
	allocated := testing.AllocsPerRun(10, func() {
		m = header.Map{}
		m.Reserve(len(names))
		for _, name := range names {
			m.Set(name, "value")
		}
	})
	if allocated != 1 {
		t.Errorf("%v allocations, want the one of Reserve", allocated)
	}
}

func TestWithinUsesTheBufferAsLongAsItFits(t *testing.T) {
	buf := make([]header.Field, 2, 3)
	m := header.Within(buf)
	same(t, m)
	m.Set("A", "1")
	m.Set("B", "2")
	if buf[0].Name != "A" || buf[1].Name != "B" {
		t.Errorf("the buffer holds %v", buf)
	}
	m.Set("C", "3")
	if got := buf[:3][2]; got.Name != "" {
		t.Errorf("%q was written behind the buffer's end", got.Name)
	}
	same(t, m, fields{{"A", "1"}, {"B", "2"}, {"C", "3"}}...)
}

func TestWhatIsLentIsCopiedBeforeItChanges(t *testing.T) {
	for name, change := range map[string]struct {
		f    func(*header.Map)
		want fields
	}{
		"Set":                     {func(m *header.Map) { m.Set("A", "changed") }, fields{{"A", "changed"}, {"B", "2"}}},
		"Set of a new one":        {func(m *header.Map) { m.Set("C", "3") }, fields{{"A", "1"}, {"B", "2"}, {"C", "3"}}},
		"SetDefault":              {func(m *header.Map) { m.SetDefault("C", "3") }, fields{{"A", "1"}, {"B", "2"}, {"C", "3"}}},
		"SetDefault of a present": {func(m *header.Map) { m.SetDefault("A", "3") }, fields{{"A", "1"}, {"B", "2"}}},
		"Del":                     {func(m *header.Map) { m.Del("A") }, fields{{"B", "2"}}},
		"Del of the last":         {func(m *header.Map) { m.Del("B"); m.Set("A", "changed") }, fields{{"A", "changed"}}},
		"UnmarshalJSON": {func(m *header.Map) {
			if err := m.UnmarshalJSON([]byte(`{"D":"4"}`)); err != nil {
				t.Error(err)
			}
		}, fields{{"D", "4"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var m header.Map
			m.Reserve(8) // room that an append would write to
			m.Set("A", "1")
			m.Set("B", "2")
			shared, other := m.CopyOnWrite(), m.CopyOnWrite()
			change.f(&shared)
			same(t, shared, change.want...)
			same(t, m, fields{{"A", "1"}, {"B", "2"}}...)
			same(t, other, fields{{"A", "1"}, {"B", "2"}}...)
			m.Set("E", "5")
			same(t, shared, change.want...)
		})
	}
}

func TestLendingAllocatesNothing(t *testing.T) {
	m := header.New(fields{{"A", "1"}}...)
	if allocated := testing.AllocsPerRun(10, func() {
		if shared := m.CopyOnWrite(); shared.Get("A") != "1" {
			t.Error("the headers are missing")
		}
	}); allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}

func TestReserveOfAMapInUsePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not panic")
		}
	}()
	m := header.New(fields{{"A", "1"}}...)
	m.Reserve(4)
}

func TestNamesAreNServiceBusOrOurs(t *testing.T) {
	// Repeated on purpose: the names of headers must not change by
	// a slip in the constants.
	for got, want := range map[string]string{
		header.MessageID:            "NServiceBus.MessageId",
		header.CorrelationID:        "NServiceBus.CorrelationId",
		header.ConversationID:       "NServiceBus.ConversationId",
		header.EnclosedMessageTypes: "NServiceBus.EnclosedMessageTypes",
		header.ReplyToAddress:       "NServiceBus.ReplyToAddress",
		header.TimeSent:             "NServiceBus.TimeSent",
		header.FailedQ:              "NServiceBus.FailedQ",
		header.Retries:              "NServiceBus.Retries",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// sample has the headers of an ordinary message.
func sample() header.Map {
	return header.New(fields{
		{header.MessageID, "3f1ad4ad-0e5b-4c0b-a9ab-b1f100c0ffee"},
		{header.CorrelationID, "3f1ad4ad-0e5b-4c0b-a9ab-b1f100c0ffee"},
		{header.ConversationID, "0d2e7f77-9f8b-47c5-8f0e-b1f100c0ffee"},
		{header.RelatedTo, "77b2b9c5-3b4e-4e6d-8e0e-b1f100c0ffee"},
		{header.MessageIntent, header.IntentPublish},
		{header.ReplyToAddress, "sales"},
		{header.OriginatingEndpoint, "sales"},
		{header.OriginatingMachine, "node-7"},
		{header.ContentType, "application/json"},
		{header.EnclosedMessageTypes, "Shop.OrderPlaced;Shop.IOrderEvent"},
		{header.TimeSent, "2026-01-02 03:04:05:678901 Z"},
		{header.Version, "10.0.0"},
	}...)
}

func BenchmarkGet(b *testing.B) {
	m := sample()
	for b.Loop() {
		_ = m.Get(header.TimeSent)
	}
}

func BenchmarkClone(b *testing.B) {
	m := sample()
	b.ReportAllocs()
	for b.Loop() {
		_ = m.Clone()
	}
}

func ExampleMap() {
	m := header.New(header.Field{Name: header.ContentType, Value: "application/json"})
	m.Set("Tenant", "blue")
	for name, value := range m.All() {
		fmt.Println(name, "=", value)
	}
	fmt.Println(strings.Contains(string(m.AppendJSON(nil)), `"Tenant":"blue"`))
	// Output:
	// NServiceBus.ContentType = application/json
	// Tenant = blue
	// true
}

func TestOfOwnsItsFields(t *testing.T) {
	given := fields{{"B", "1"}, {"A", "2"}}
	m := header.Of(given)
	m.Set("B", "3")
	same(t, m, header.Field{Name: "B", Value: "3"}, header.Field{Name: "A", Value: "2"})
	if given[0].Value != "3" {
		t.Error("the Map copied the fields")
	}
}

func TestNotUTF8(t *testing.T) {
	for _, test := range []struct {
		m    header.Map
		name string
		want bool
	}{
		{header.Map{}, "", false},
		{header.New(header.Field{"a", "ü"}, header.Field{"\x00", "\uFFFD"}), "", false},
		{header.New(header.Field{"a", "b"}, header.Field{"c", "\xff"}, header.Field{"\xff", "d"}), "c", true},
		{header.New(header.Field{"\xed\xa0\x80", "d"}), "\xed\xa0\x80", true},
	} {
		if name, found := test.m.NotUTF8(); name != test.name || found != test.want {
			t.Errorf("%v: %q, %v", listed(test.m), name, found)
		}
	}
}
