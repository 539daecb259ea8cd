package nsbxml_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/serialization/nsbxml"
)

// Messages of the recordings.
type (
	ping struct {
		Text   string
		N      int32
		When   time.Time
		Amount json.Number
	}
	happened struct{ Text string }
	flaky    struct {
		Text string
		Fail int
	}
	ask struct {
		ID string `xml:"Id"`
	}
	later struct {
		Text string
		Sent time.Time
	}
	everything struct {
		G       string
		D       json.Number
		T       time.Duration
		E       color
		B       []byte
		Nothing *int
		Utc     time.Time
		Off     time.Time
		Map     map[string]int32
		L       []string
		Big     int64
		F       float64
		U       string
	}
)

// color is an enum: a name in XML and a number in JSON.
type color int

var colors = []string{"Red", "Green"}

func (c color) MarshalText() ([]byte, error) { return []byte(colors[c]), nil }

func (c *color) UnmarshalText(text []byte) error {
	for i, name := range colors {
		if name == string(text) {
			*c = color(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no color", text)
}

// Each recorded body is read into Go structs, which are written as the same bytes.
func TestRecordedBodiesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	recorded, err := os.ReadFile("../../testdata/nservicebus/rabbitmq-xml.json")
	if err != nil {
		t.Fatal(err)
	}
	var messages []struct {
		Body       string
		Properties struct{ Headers map[string]any }
	}
	if err := json.Unmarshal(recorded, &messages); err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	want := []any{
		ping{"net→go 0 ü", 0, at("2026-11-22T15:34:49.126576Z"), "1.25"},
		happened{"from .NET"},
		happened{"from .NET"},
		flaky{"f1", 1},
		happened{"by interface"},
		ask{"saga-1"},
		happened{"five minutes"},
		everything{
			"11111111-2222-3333-4444-555555555555", "12345.6789", 90*time.Second + 500*time.Millisecond, 1,
			[]byte{0, 1, 254, 255},
			nil, at("2026-11-22T10:11:12Z"), at("2026-11-22T10:11:12+02:00"),
			map[string]int32{"a": 1},
			[]string{"x", "ü", "\u2028<&>\""},
			math.MaxInt64, 0.1, "zß水🍌",
		},
		ping{"own id and headers", 0, at("0001-01-01T00:00:00Z"), "0"},
		later{"at", at("2026-11-22T15:34:49.3234263Z")},
	}
	if len(messages) != len(want) {
		t.Fatalf("%d messages are recorded, want %d", len(messages), len(want))
	}
	for i, m := range messages {
		got := reflect.New(reflect.TypeOf(want[i]))
		if err := nsbxml.XML.Unmarshal([]byte(m.Body), got.Interface()); err != nil {
			t.Errorf("%s: %v", m.Body, err)
			continue
		}
		if diff := cmp.Diff(want[i], got.Elem().Interface(), cmp.AllowUnexported()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", m.Body, diff)
		}
		types := strings.Split(m.Properties.Headers[header.EnclosedMessageTypes].(string), ";")
		body, err := nsbxml.XML.MarshalNamed(types, got.Interface())
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(m.Body, string(body)); diff != "" {
			t.Errorf("written otherwise (-recorded +ours):\n%s", diff)
		}
	}
}

type scalars struct {
	B   bool
	I8  int8
	U64 uint64
	F32 float32
	F64 float64
	S   string
	At  time.Time
	D   time.Duration
	Sp  serialization.TimeSpan
	P   *string
	R   *scalars
	Rs  []scalars        `xml:"Items>Item"`
	M   map[color][]byte `xml:"Colors"`
	Of  map[string]*scalars
	Sps []serialization.TimeSpan
}

type base struct{ Inner string }

type derived struct {
	base
	Outer string
	skip  int // unexported fields are left out
	No    int `xml:"-"`
}

func TestValuesRoundTrip(t *testing.T) {
	t.Parallel()
	hello := "a\r\n\tb ]]> 'c' \"d\" "
	for _, want := range []any{
		&scalars{},
		&scalars{
			true, -128, math.MaxUint64, 1e-7, 1.7976931348623157e308, hello, time.Date(2026, 2, 3, 4, 5, 6, 700, time.UTC),
			-time.Hour - 100, serialization.TimeSpan(math.MinInt64 / 100 * 100), &hello,
			&scalars{S: "inner"},
			[]scalars{{S: "1"}, {S: "2"}},
			map[color][]byte{0: {1}, 1: {}},
			map[string]*scalars{"x": nil, "": {S: "y"}},
			[]serialization.TimeSpan{1e9},
		},
		&scalars{F64: math.Inf(1), F32: float32(math.Inf(-1)), Rs: []scalars{}},
		&derived{base{"in"}, "out", 0, 0},
	} {
		body, err := nsbxml.XML.Marshal(want)
		if err != nil {
			t.Errorf("%+v: %v", want, err)
			continue
		}
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := nsbxml.XML.Unmarshal(body, got); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(derived{}, base{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", body, diff)
		}
	}
}

// Some types, such as those of package math/big, have the methods on their pointers.
func TestTheMethodsOfPointersWriteText(t *testing.T) {
	t.Parallel()
	type numbers struct {
		N big.Int
		P *big.Int
	}
	want := numbers{*big.NewInt(12), big.NewInt(-7)}
	body, err := nsbxml.XML.Marshal(want)
	if err != nil || !strings.Contains(string(body), "<N>12</N><P>-7</P>") {
		t.Errorf("%s, %v", body, err)
	}
	var got numbers
	if err := nsbxml.XML.Unmarshal(body, &got); err != nil || got.N.Cmp(&want.N) != 0 || got.P.Cmp(want.P) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// grade is an enum of bytes, whose lists are not Base64.
type grade uint8

func (g grade) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "G%d", g), nil }

func (g *grade) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "G%d", (*uint8)(g))
	return err
}

func TestListsOfEnumsAreNoBytes(t *testing.T) {
	t.Parallel()
	type grades struct{ L []grade }
	body, err := nsbxml.XML.Marshal(grades{[]grade{1, 2}})
	if err != nil || !strings.Contains(string(body), "<L><grade>G1</grade><grade>G2</grade></L>") {
		t.Errorf("%s, %v", body, err)
	}
	var got grades
	if err := nsbxml.XML.Unmarshal(body, &got); err != nil || !slices.Equal(got.L, []grade{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

// .NET refuses an empty decimal.
func TestDecimalsAreNumbers(t *testing.T) {
	t.Parallel()
	type order struct{ Price json.Number }
	if body, err := nsbxml.XML.Marshal(order{}); err != nil || !strings.Contains(string(body), "<Price>0</Price>") {
		t.Errorf("%s, %v", body, err)
	}
	if body, err := nsbxml.XML.Marshal(order{"ten"}); err == nil {
		t.Errorf("ten is written: %s", body)
	}
	for text, want := range map[string]bool{" -0.10\n": true, "79228162514264337593543950335": true, "ten": false, "": false} {
		var got order
		err := nsbxml.XML.Unmarshal([]byte("<order><Price>"+text+"</Price></order>"), &got)
		if want != (err == nil) || want && got.Price.String() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
}

func TestNamesOfTypesAndBases(t *testing.T) {
	t.Parallel()
	const spaces = ` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema"`
	for want, names := range map[string][]string{
		`<Placed` + spaces + ` xmlns="http://tempuri.net/">`:                                        {"Placed"},
		`<Placed` + spaces + ` xmlns="http://tempuri.net/Shop.Orders">`:                             {"Shop.Orders.Placed, shop, Version=1.0.0.0"},
		`<Inner` + spaces + ` xmlns="http://tempuri.net/Shop">`:                                     {"Shop.Outer+Middle+Inner"},
		`<A` + spaces + ` xmlns:baseType="S.B" xmlns:baseType1="S.C" xmlns="http://tempuri.net/S">`: {"S.A", "S.B, x", "S.C"},
	} {
		body, err := nsbxml.XML.MarshalNamed(names, happened{})
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%q: %s, %v; want %s", names, body, err, want)
		}
	}
	for _, names := range [][]string{nil, {""}, {"Shop."}, {"Shop.A B"}, {"Shop.1"}, {"S.List`1[[System.Int32]]"}, {"S.A", "\x00"}, {`S".A`}, {"S.A", `S".B`}} {
		if body, err := nsbxml.XML.MarshalNamed(names, happened{}); err == nil {
			t.Errorf("%q: %s", names, body)
		}
	}
}

func TestBodiesOfOtherWritersAreRead(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"\xef\xbb\xbf<happened><Text>x</Text></happened>":                                                    "x",
		"<Messages xmlns='a'><Happened>\n <Text>x</Text>\n</Happened></Messages>":                            "x",
		`<?xml version="1.0" encoding="utf-8"?><!-- c --><H><Other><Text>y</Text></Other><Text>x</Text></H>`: "x",
		"<H><Text><![CDATA[<x>]]>&amp;</Text></H>":                                                           "<x>&",
		"<H a='b'/>": "",
		"<p:H xmlns:p='q'><p:Text>&#x78;</p:Text></p:H>": "x",
	} {
		var got happened
		if err := nsbxml.XML.Unmarshal([]byte(body), &got); err != nil || got.Text != want {
			t.Errorf("%s: %q, %v; want %q", body, got.Text, err, want)
		}
	}
}

func TestBadBodiesAreRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("<R>", 100_000)
	for body, want := range map[string]string{
		"":                              "no element",
		"x":                             "text between elements",
		"<a>":                           "unexpected EOF",
		"<a></b>":                       "closed by",
		"{}":                            "text between elements",
		"<a/><b/>":                      "several messages",
		"<Messages/>":                   "no message",
		"<Messages><a/><b/></Messages>": "several messages",
		"<a xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance' xsi:nil='true'/>": "nil",
		"<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>":                                  "document types",
		"<a><S>&x;</S></a>":                                           "entity",
		`<?xml version="1.0" encoding="utf-16"?><a/>`:                 "utf-16",
		"<a><S>\x00</S></a>":                                          "illegal character",
		"<a><S>\xff</S></a>":                                          "UTF-8",
		"<a><S><b/></S></a>":                                          "where a text is expected",
		"<a><I8>128</I8></a>":                                         "I8",
		"<a><F64>0x1p3</F64></a>":                                     "not a number",
		"<a><At>yesterday</At></a>":                                   "At",
		"<a><D>P1X</D></a>":                                           "PT1M30.5S",
		"<a><D>P300Y</D></a>":                                         "longer than",
		"<a><B/></a>":                                                 "B",
		"<a><Colors><x><Key>Blue</Key></x></Colors></a>":              "no color",
		"<a><Colors><x><Value></Value></x></Colors></a>":              "no Key",
		"<a><Colors><x><Key>Red</Key><Key>Red</Key></x></Colors></a>": "Key and a Value",
		"<a>" + deep:                                                  "over 64 elements",
		"<a>" + strings.Repeat("<i/>", nsbxml.MaxElements):            "over 64 elements in one another, or 1000000",
	} {
		err := nsbxml.XML.Unmarshal([]byte(body), new(scalars))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", body, err, want)
		}
	}
}

// level is of five elements in one another, so that a multiple of it passes over MaxDepth.
type (
	level  struct{ A levelA }
	levelA struct{ B levelB }
	levelB struct{ M map[string]level }
)

func TestValuesWithoutAFormAreRefused(t *testing.T) {
	t.Parallel()
	cycle := &scalars{}
	cycle.R = cycle
	var nested level
	for range 20 {
		nested.A.B.M = map[string]level{"": nested}
	}
	for want, v := range map[string]any{
		"no struct":               17,
		"no struct, or":           (*happened)(nil),
		"encode <nil>":            nil,
		"field V of":              struct{ V any }{},
		"values of type chan int": struct{ V chan int }{},
		"values of type [3]int":   struct{ V [3]int }{},
		"has options": struct {
			V int `xml:"V,attr"`
		}{},
		"are named V": struct {
			V int
			W int `xml:"V"`
		}{},
		"lists and maps of []string": struct{ V [][]string }{[][]string{{}}},
		"cannot be named": struct {
			V int `xml:"a b"`
		}{},
		"character U+0000": happened{"\x00"},
		"is no UTF-8":      happened{"\xff"},
		"the year 10000":   struct{ V time.Time }{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"over 64 elements": cycle,
		"elements in one":  nested,
		"keys of type nsb": struct{ V map[happened]int }{},
		"two keys":         struct{ V map[time.Time]int }{map[time.Time]int{time.Unix(1, 1): 1, time.Unix(1, 2): 2}},
	} {
		body, err := nsbxml.XML.MarshalNamed([]string{"Shop.A"}, v)
		if v == nil {
			body, err = nsbxml.XML.Marshal(v)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %s, %v; want %q", v, body, err, want)
		}
	}
}

// A body that is read can be written, and is read as the same then.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`<a><B>true</B><D>-P1DT2H3M4.5S</D><At>2026-01-01T00:00:00</At><R><S>x</S></R><Colors><x><Key>Red</Key></x></Colors></a>`))
	f.Add([]byte("<a><S>\xe4</S></a>"))
	f.Add([]byte(`<Messages><a><Items><Item/><Item><I8>1</I8></Item></Items><F64>INF</F64><Sp>PT1S</Sp></a></Messages>`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var first, second scalars
		if nsbxml.XML.Unmarshal(body, &first) != nil || first.F64 != first.F64 || first.F32 != first.F32 {
			return
		}
		if !utf8.Valid(body) {
			t.Fatalf("%q is read, and is not valid UTF-8", body)
		}
		written, err := nsbxml.XML.Marshal(first)
		if err != nil {
			if strings.Contains(err.Error(), "the year") || strings.Contains(err.Error(), "over 64") {
				return
			}
			t.Fatalf("%q is read, but: %v", body, err)
		}
		if err := nsbxml.XML.Unmarshal(written, &second); err != nil {
			t.Fatalf("%q is written as %q, which is not read: %v", body, written, err)
		}
		again, err := nsbxml.XML.Marshal(second)
		if err != nil || string(again) != string(written) {
			t.Fatalf("%q, then %q: %v", written, again, err)
		}
	})
}
