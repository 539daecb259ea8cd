package demo

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"
)

// Order is a line of the input and the body of the command Shop.PlaceOrder.
type Order struct {
	OrderID  string              `json:"orderId"`
	Customer struct{ ID string } `json:"customer"`
	PlacedAt time.Time           `json:"placedAt"`
	Currency string              `json:"currency"`
	Items    []Item              `json:"items"`
	Total    Amount              `json:"total"`
}

// Item is a line of an order.
type Item struct {
	Quantity  int    `json:"quantity"`
	UnitPrice Amount `json:"unitPrice"`
}

// currencies are those that the shop accepts.
var currencies = map[string]bool{"EUR": true, "USD": true, "GBP": true, "CHF": true, "SEK": true, "PLN": true}

// validate returns an error for each rule that the order breaks.
func (o *Order) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.OrderID != "", "orderId is missing")
	check(o.Customer.ID != "", "customer.id is missing")
	check(!o.PlacedAt.IsZero(), "placedAt is missing")
	check(currencies[o.Currency], "currency %q is not one that the shop takes", o.Currency)
	check(len(o.Items) > 0, "there are no items")
	var sum Amount
	for i, item := range o.Items {
		check(item.Quantity > 0 && item.UnitPrice >= 0, "item %d: quantity %d at %v", i+1, item.Quantity, item.UnitPrice)
		sum += Amount(item.Quantity) * item.UnitPrice
	}
	check(sum == o.Total, "total is %v, but the items make %v", o.Total, sum)
	return errors.Join(errs...)
}

// Amount is money in hundredths. In JSON it is a number with at most two decimals.
type Amount int64

// String returns the amount with two decimals.
func (a Amount) String() string { return big.NewRat(int64(a), 100).FloatString(2) }

// MarshalJSON returns a JSON number.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalJSON reads a JSON number, without floating point.
func (a *Amount) UnmarshalJSON(text []byte) error {
	whole, fraction, _ := strings.Cut(string(text), ".")
	n, err := strconv.ParseInt(whole+fraction+"00"[min(len(fraction), 2):], 10, 64)
	if err != nil || len(fraction) > 2 {
		return fmt.Errorf("amount %s: want a number with at most two decimals", text)
	}
	*a = Amount(n)
	return nil
}

// Line is a line of the input: an order, or a malformed one.
type Line struct {
	No   int // in the file, from 1
	Text []byte
}

// Input is the file of orders, without empty lines. Hash is that of the lines.
type Input struct {
	Name, Hash string
	Lines      []Line
}

// ReadInput reads the first limit lines of the file that are not empty; all when limit is 0.
func ReadInput(name string, limit int) (*Input, error) {
	all, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}
	in, hash, no := &Input{Name: name}, sha256.New(), 0
	for text := range bytes.Lines(all) {
		if no++; limit > 0 && len(in.Lines) == limit {
			break
		}
		if text = bytes.TrimRight(text, "\r\n"); len(bytes.TrimSpace(text)) > 0 {
			in.Lines = append(in.Lines, Line{No: no, Text: text})
			fmt.Fprintf(hash, "%d %s\n", no, text)
		}
	}
	if len(in.Lines) == 0 {
		return nil, fmt.Errorf("read the orders: %s has no lines", name)
	}
	in.Hash = fmt.Sprintf("%x", hash.Sum(nil)[:8])
	return in, nil
}

// order reads a line as the endpoint sales does.
func (l Line) order() (*Order, error) {
	var o Order
	if err := json.Unmarshal(l.Text, &o); err != nil {
		return &o, err
	}
	return &o, o.validate()
}

// malformed returns the lines that sales rejects, with the reason.
func (in *Input) malformed() (found []string) {
	for _, l := range in.Lines {
		if _, err := l.order(); err != nil {
			found = append(found, fmt.Sprintf("line %d: %s", l.No, oneLine(err)))
		}
	}
	return found
}

// oneLine returns the text of an error that may join several.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
