package jsonloss_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/jsonloss"
)

type (
	money  struct{ amount, currency string } //nolint:unused // fields that JSON does not store
	line   struct{ Price money }
	base   struct{ ID string }
	Base   struct{ ID, Name string }
	Other  struct{ ID, Note string }
	number int
	tree   struct {
		Left  *tree
		Below []tree
		Index map[string]tree
		Value int
	}
	// Chain is embedded in itself.
	Chain struct {
		*Chain
		Value int
	}
	guarded struct {
		mu    sync.Mutex `json:"-"` //nolint:unused // as in a type of a user
		Count int
		_     int
		none  struct{} //nolint:unused // has no contents
	}
	stamped struct{ time.Time }
	noted   struct {
		time.Time
		Note string
	}
	secretly struct {
		time.Time
		note string //nolint:unused // as money
	}
	wrapped struct {
		stamped
		Note string
	}
	either struct {
		json.Marshaler
		X int
	}
	generic[T any] struct {
		time.Time
		Note T
	}
	ownGeneric[T any] struct {
		time.Time
		Note T
	}

	// own embeds a type that encodes itself, and has methods of its own.
	own struct {
		time.Time
		Note string
	}

	// reads decodes itself, and writes writes itself.
	reads  int
	writes int
	upper  string
	plain  struct{ Value int }
	cents  struct{ n int64 }
	key    int
	quoted struct {
		K key  `json:",string"`
		P *key `json:",string"`
	}
)

func (o own) MarshalJSON() ([]byte, error) { return json.Marshal([]any{o.Time, o.Note}) }

func (o *own) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &[]any{&o.Time, &o.Note}) }

func (o ownGeneric[T]) MarshalJSON() ([]byte, error) { return json.Marshal([]any{o.Time, o.Note}) }

func (o *ownGeneric[T]) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&o.Time, &o.Note})
}

func (r *reads) UnmarshalJSON(text []byte) error {
	return json.Unmarshal([]byte(strings.Trim(string(text), `"`)), (*int)(r))
}

func (w writes) MarshalText() ([]byte, error) { return []byte(fmt.Sprint("number ", int(w))), nil }

func (u upper) MarshalJSON() ([]byte, error) { return json.Marshal(strings.ToUpper(string(u))) }

// MarshalJSON writes the form that a reader without methods reads.
func (p plain) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]int{"Value": p.Value, "Twice": 2 * p.Value})
}

func (c *cents) MarshalJSON() ([]byte, error) { return json.Marshal(c.n) }

func (c *cents) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.n) }

func (k key) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "k%d", int(k)), nil }

func (k *key) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "k%d", (*int)(k))
	return err //nolint:wrapcheck // a test
}

// types are types with the paths that JSON loses; none of a type whose values are stored
// completely.
var types = []struct {
	of   reflect.Type
	lost string
}{
	{reflect.TypeFor[time.Time](), ""},
	{reflect.TypeFor[*time.Time](), ""},
	{reflect.TypeFor[json.RawMessage](), ""},
	{reflect.TypeFor[big.Int](), ""},
	{reflect.TypeFor[*big.Int](), ""},
	{reflect.TypeFor[netip.Addr](), ""},
	{reflect.TypeFor[guarded](), ""},
	{reflect.TypeFor[tree](), ""},
	{reflect.TypeFor[[]byte](), ""},
	{reflect.TypeFor[[16]byte](), ""},
	{reflect.TypeFor[map[netip.Addr]int](), ""},
	{reflect.TypeFor[map[key]int](), ""},
	{reflect.TypeFor[map[int8][]*uint64](), ""},
	{reflect.TypeFor[stamped](), ""},
	{reflect.TypeFor[struct{ stamped }](), ""},
	{reflect.TypeFor[own](), ""},
	{reflect.TypeFor[ownGeneric[string]](), ""},
	{reflect.TypeFor[reads](), ""},
	{reflect.TypeFor[plain](), ""},
	{reflect.TypeFor[cents](), ""},
	{reflect.TypeFor[struct{ base }](), ""},
	{reflect.TypeFor[struct{ *Base }](), ""},
	{reflect.TypeFor[struct {
		A Base `json:"a"`
		B Base `json:",omitempty"`
	}](), ""},
	{reflect.TypeFor[struct {
		Base
		Other `json:"other"`
	}](), ""},
	{reflect.TypeFor[struct {
		base `json:"base"`
	}](), ""},
	{reflect.TypeFor[struct {
		N *int64 `json:",string"`
	}](), ""},
	{reflect.TypeFor[[0]chan int](), ""},

	{reflect.TypeFor[money](), "jsonloss_test.money.amount jsonloss_test.money.currency"},
	{reflect.TypeFor[map[string][]*line](), "map[string][]*jsonloss_test.line[][].Price.amount map[string][]*jsonloss_test.line[][].Price.currency"},
	{reflect.TypeFor[noted](), "jsonloss_test.noted.Note"},
	{reflect.TypeFor[secretly](), "jsonloss_test.secretly.note"},
	{reflect.TypeFor[wrapped](), "jsonloss_test.wrapped.Note"},
	{reflect.TypeFor[generic[int]](), "jsonloss_test.generic[int].Note"},
	{reflect.TypeFor[either](), "jsonloss_test.either.X jsonloss_test.either.Marshaler"},
	{reflect.TypeFor[url.URL](), "url.URL.User.username url.URL.User.password url.URL.User.passwordSet"},
	{reflect.TypeFor[sync.Mutex](), "sync.Mutex.mu"},
	{reflect.TypeFor[Chain](), "jsonloss_test.Chain.Chain"},
	{reflect.TypeFor[any](), "interface {}"},
	{reflect.TypeFor[map[string]fmt.Stringer](), "map[string]fmt.Stringer[]"},
	{reflect.TypeFor[map[string]big.Int](), "map[string]big.Int[]"},
	{reflect.TypeFor[map[string]cents](), "map[string]jsonloss_test.cents[]"},
	{reflect.TypeFor[map[float64]int](), "map[float64]int[key]"},
	{reflect.TypeFor[map[own]int](), "map[jsonloss_test.own]int[key].Note"},
	{reflect.TypeFor[map[*netip.Addr]int](), "map[*netip.Addr]int[key]"},
	{reflect.TypeFor[map[writes]int](), "map[jsonloss_test.writes]int[key]"},
	{reflect.TypeFor[chan int](), "chan int"},
	{reflect.TypeFor[quoted](), "jsonloss_test.quoted.K jsonloss_test.quoted.P"},
	{reflect.TypeFor[func()](), "func()"},
	{reflect.TypeFor[complex64](), "complex64"},
	{reflect.TypeFor[writes](), "jsonloss_test.writes"},
	{reflect.TypeFor[upper](), "jsonloss_test.upper"},
	{reflect.TypeFor[struct{ number }](), "struct { jsonloss_test.number }.number"},
	{reflect.TypeFor[struct{ *base }](), "struct { *jsonloss_test.base }.base"},
	{reflect.TypeFor[struct {
		Base
		Other
	}](), "struct { jsonloss_test.Base; jsonloss_test.Other }.Base.ID struct { jsonloss_test.Base; jsonloss_test.Other }.Other.ID"},
}

func TestOfListsLostPaths(t *testing.T) {
	for _, test := range types {
		var paths []string
		for _, l := range jsonloss.Of(test.of) {
			paths = append(paths, l.Path)
		}
		if diff := cmp.Diff(test.lost, strings.Join(paths, " ")); diff != "" {
			t.Errorf("%v:\n%s", test.of, diff)
		}
		if equal, text := roundTrip(test.of, 1); equal != (test.lost == "") {
			t.Errorf("%v: equal after a round trip: %v\n%s", test.of, equal, text)
		}
	}
}
