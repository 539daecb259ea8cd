package bench

import (
	"encoding/json"
	"fmt"
	"time"
)

// order is the body of every message.
type order struct {
	OrderID    string    `json:"orderId"`
	CustomerID string    `json:"customerId"`
	PlacedAt   time.Time `json:"placedAt"`
	Currency   string    `json:"currency"`
	Total      float64   `json:"total"`
	Lines      []line    `json:"lines"`
	Notes      string    `json:"notes,omitempty"`
}

type line struct {
	SKU   string  `json:"sku"`
	Qty   int     `json:"qty"`
	Price float64 `json:"price"`
}

// orderBody returns an order as JSON with as many lines as fit into size bytes.
func orderBody(size int) ([]byte, error) {
	o := order{
		OrderID: "3f2b8c1e-7a54-4c0d-9d3e-1b2c3d4e5f60", CustomerID: "cust-000123",
		PlacedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Currency: "EUR", Total: 129.95,
		Lines: []line{{"SKU-001", 1, 49.95}},
	}
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if len(body) > size {
		return nil, fmt.Errorf("a body of %d bytes is too small: an order has at least %d", size, len(body))
	}
	for left := size - len(body); ; {
		next := line{fmt.Sprintf("SKU-%03d", len(o.Lines)+1), len(o.Lines) + 1, 9.95}
		text, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		if left -= len(text) + len(","); left < 0 {
			return json.Marshal(o)
		}
		o.Lines = append(o.Lines, next)
	}
}
