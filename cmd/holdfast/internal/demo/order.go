// Package demo is what holdfast demo runs: a small shop whose orders come from a file
// and go through four endpoints, with a ledger that proves that none was lost or
// handled twice.
package demo

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Order is one line of the input and the body of the command Shop.PlaceOrder.
type Order struct {
	OrderID  string    `json:"orderId"`
	Customer Customer  `json:"customer"`
	PlacedAt time.Time `json:"placedAt"`
	Currency string    `json:"currency"`
	Items    []Item    `json:"items"`
	Total    Amount    `json:"total"`
	ShipTo   Address   `json:"shipTo"`
}

// Customer is who ordered.
type Customer struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Item is a line of an order.
type Item struct {
	SKU       string `json:"sku"`
	Name      string `json:"name"`
	Quantity  int    `json:"quantity"`
	UnitPrice Amount `json:"unitPrice"`
}

// Address is where an order goes.
type Address struct {
	City    string `json:"city"`
	Country string `json:"country"`
}

// OrderPlaced is the event that sales publishes for every order that it accepts.
type OrderPlaced struct {
	OrderID    string `json:"orderId"`
	CustomerID string `json:"customerId"`
	Country    string `json:"country"`
	Currency   string `json:"currency"`
	Amount     Amount `json:"amount"`
}

// currencies are those that the shop takes.
var currencies = map[string]bool{"EUR": true, "USD": true, "GBP": true, "CHF": true, "SEK": true, "PLN": true}

// validate says all that is wrong with an order that could be read.
func (o *Order) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.OrderID == "" {
		bad("orderId is missing")
	}
	if o.Customer.ID == "" {
		bad("customer.id is missing")
	}
	if o.PlacedAt.IsZero() {
		bad("placedAt is missing")
	}
	if !currencies[o.Currency] {
		bad("currency %q is not one that the shop takes", o.Currency)
	}
	if len(o.Items) == 0 {
		bad("there are no items")
	}
	var sum Amount
	for i, item := range o.Items {
		if item.Quantity <= 0 || item.UnitPrice < 0 {
			bad("item %d: quantity %d at %v", i+1, item.Quantity, item.UnitPrice)
		}
		sum += Amount(item.Quantity) * item.UnitPrice
	}
	if sum != o.Total {
		bad("total is %v, but the items make %v", o.Total, sum)
	}
	return errors.Join(errs...)
}

// Amount is money in hundredths. In JSON it is a number with at most two decimals;
// floating point never touches it.
type Amount int64

// String is the amount with two decimals.
func (a Amount) String() string {
	sign := ""
	if a < 0 {
		sign, a = "-", -a
	}
	return fmt.Sprintf("%s%d.%02d", sign, a/100, a%100)
}

// MarshalJSON writes a JSON number.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalJSON reads a JSON number.
func (a *Amount) UnmarshalJSON(text []byte) error {
	parsed, err := parseAmount(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

func parseAmount(text string) (Amount, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	if len(fraction) > 2 {
		return 0, fmt.Errorf("amount %s: want a number with at most two decimals", text)
	}
	fraction += "00"[len(fraction):]
	n, err := strconv.ParseInt(whole+fraction, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("amount %s: want a number with at most two decimals", text)
	}
	return Amount(n), nil
}
