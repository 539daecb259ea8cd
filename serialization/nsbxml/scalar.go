package nsbxml

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Times without a zone are UTC.
const (
	timeForm      = "2006-01-02T15:04:05.9999999Z07:00"
	localTimeForm = "2006-01-02T15:04:05.9999999"
	tick          = 100 * time.Nanosecond
)

// text returns the text of a scalar.
func text(v reflect.Value) (string, error) {
	switch t := v.Type(); {
	case t == timeType:
		at := v.Interface().(time.Time) //nolint:errcheck // its type
		if at.Year() < 1 || at.Year() > 9999 {
			return "", fmt.Errorf("the year %d is none of .NET's", at.Year())
		}
		return at.Truncate(tick).Format(timeForm), nil
	case isDuration(t):
		return durationText(time.Duration(v.Int())), nil
	case isText(t):
		p := reflect.New(t)
		p.Elem().Set(v)
		b, err := p.Interface().(encoding.TextMarshaler).MarshalText() //nolint:errcheck // isText
		return string(b), err
	case t == numberType:
		s := cmp.Or(v.String(), "0") // as encoding/json does
		_, err := parseNumber(s, 64)
		return s, err
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10), nil
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10), nil
	case v.CanFloat():
		return floatText(v.Float(), t.Bits()), nil
	case t.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool()), nil
	default:
		return v.String(), nil
	}
}

// setText sets v to a scalar of the text. Space around anything but strings is ignored.
func setText(v reflect.Value, s string) (err error) {
	t := v.Type()
	if t.Kind() != reflect.String || t == numberType {
		s = strings.TrimSpace(s)
	}
	switch {
	case t == numberType:
		_, err := parseNumber(s, 64)
		v.SetString(s)
		return err
	case t == timeType:
		at, err := time.Parse(timeForm, s)
		if err != nil {
			at, err = time.Parse(localTimeForm, s)
		}
		v.Set(reflect.ValueOf(at))
		return err
	case isDuration(t):
		d, err := parseDuration(s)
		v.SetInt(int64(d))
		return err
	case isText(t):
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)) //nolint:errcheck // isText
	case v.CanInt():
		n, err := strconv.ParseInt(s, 10, t.Bits())
		v.SetInt(n)
		return err
	case v.CanUint():
		n, err := strconv.ParseUint(s, 10, t.Bits())
		v.SetUint(n)
		return err
	case v.CanFloat():
		f, err := parseFloat(s, t.Bits())
		v.SetFloat(f)
		return err
	case t.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(s)
		v.SetBool(b)
		return err
	}
	v.SetString(s)
	return nil
}

// floatText returns a number as .NET writes it: 0.1, 1E+15, INF.
func floatText(f float64, bits int) string {
	switch {
	case math.IsInf(f, 1):
		return "INF"
	case math.IsInf(f, -1):
		return "-INF"
	case math.IsNaN(f):
		return "NaN"
	}
	if a := math.Abs(f); a != 0 && (a >= 1e15 || a < 1e-5) {
		return strconv.FormatFloat(f, 'E', -1, bits)
	}
	return strconv.FormatFloat(f, 'f', -1, bits)
}

// parseFloat reads a number of XML Schema, whose special values are these three. Go knows more.
func parseFloat(s string, bits int) (float64, error) {
	switch s {
	case "INF":
		return math.Inf(1), nil
	case "-INF":
		return math.Inf(-1), nil
	case "NaN":
		return math.NaN(), nil
	}
	return parseNumber(s, bits)
}

func parseNumber(s string, bits int) (float64, error) {
	if strings.Trim(s, "+-.0123456789eE") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return strconv.ParseFloat(s, bits)
}

// durationText returns a duration of XML Schema (part 2, 3.2.6) in days, hours, minutes and
// seconds.
func durationText(d time.Duration) string {
	var b strings.Builder
	u := uint64(d) //nolint:gosec // the bits of a negative one are negated below
	if d < 0 {
		b.WriteByte('-')
		u = -u
	}
	u -= u % uint64(tick)
	if u == 0 {
		return "PT0S"
	}
	b.WriteByte('P')
	part := func(unit time.Duration, letter string) {
		if n := u / uint64(unit); n > 0 {
			b.WriteString(strconv.FormatUint(n, 10) + letter)
			u %= uint64(unit)
		}
	}
	part(24*time.Hour, "D")
	if u > 0 {
		b.WriteByte('T')
		part(time.Hour, "H")
		part(time.Minute, "M")
	}
	if u > 0 {
		b.WriteString(strconv.FormatUint(u/uint64(time.Second), 10))
		if rest := u % uint64(time.Second); rest > 0 {
			b.WriteString("." + strings.TrimRight(fmt.Sprintf("%09d", rest), "0"))
		}
		b.WriteByte('S')
	}
	return b.String()
}

var errDuration = errors.New("want a duration such as PT1M30.5S")

// units are the parts of a duration in their order. Years and months have no fixed length: .NET
// takes 365 and 30 days.
var units = []struct {
	letter byte
	date   bool
	length time.Duration
}{
	{'Y', true, 365 * 24 * time.Hour},
	{'M', true, 30 * 24 * time.Hour},
	{'D', true, 24 * time.Hour},
	{'H', false, time.Hour},
	{'M', false, time.Minute},
	{'S', false, time.Second},
}

// parseDuration reads a duration of XML Schema.
func parseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	rest, ok := strings.CutPrefix(rest, "P")
	date, clock, hasClock := strings.Cut(rest, "T")
	if !ok || rest == "" || hasClock && clock == "" {
		return 0, fmt.Errorf("%q: %w", s, errDuration)
	}
	var sum time.Duration // not positive, as the range below zero is larger by one
	for _, u := range units {
		from := &clock
		if u.date {
			from = &date
		}
		i := strings.IndexByte(*from, u.letter)
		if i < 0 {
			continue
		}
		whole, fraction, _ := strings.Cut((*from)[:i], ".")
		*from = (*from)[i+1:]
		n, err := strconv.ParseUint(whole, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", s, errDuration)
		}
		part := time.Duration(n) * u.length //nolint:gosec // 63 bits
		if n > uint64(math.MaxInt64/u.length) || sum < math.MinInt64+part {
			return 0, fmt.Errorf("%q is longer than time.Duration", s)
		}
		sum -= part
		if fraction != "" {
			nanos, err := strconv.ParseUint((fraction + "00000000")[:9], 10, 32)
			if err != nil || u.letter != 'S' || strings.Trim(fraction, "0123456789") != "" {
				return 0, fmt.Errorf("%q: %w", s, errDuration)
			}
			sum -= time.Duration(nanos) //nolint:gosec // nine digits
		}
	}
	switch {
	case date != "" || clock != "":
		return 0, fmt.Errorf("%q: %w", s, errDuration)
	case sum > 0 || sum == math.MinInt64 && !negative:
		return 0, fmt.Errorf("%q is longer than time.Duration", s)
	case negative:
		return sum, nil
	}
	return -sum, nil
}
