"""What a US supplier makes of European events."""

from .conversions import ENGLISH, KILOGRAMS_PER_POUND


def call_for_offers(event):
    return "UsCallForOffers", {
        **event,
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def offer(event):
    return "UsOffer", {
        **event,
        "supplier": _address(event["supplier"]),
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def order(event):
    return "UsOrder", _with_three_addresses(event)


def confirmation(event):
    return "UsConfirmation", _with_three_addresses(event)


def shipment(event):
    return "UsShipment", {
        **event,
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def invoice(event):
    return "UsInvoice", {
        **event,
        "supplier": _address(event["supplier"]),
        "invoice": _address(event["invoice"]),
        "lines": _lines(event["lines"]),
    }


def _with_three_addresses(event):
    return {
        **event,
        "supplier": _address(event["supplier"]),
        "delivery": _address(event["delivery"]),
        "invoice": _address(event["invoice"]),
        "lines": _lines(event["lines"]),
    }


def _address(address):
    return {
        "recipient": address["name"],
        "line1": f"{address['number']} {address['street']}",
        "city_line": f"{address['city']}, {address['postcode']}",
        "country": address["country"],
    }


def _lines(lines):
    return [{**line, "product": _product(line["product"])} for line in lines]


def _product(product):
    return {
        "sku": product["id"],
        "description": ENGLISH[product["description"]],
        "weight": product["weight"] / KILOGRAMS_PER_POUND,
    }


EVENTS = {
    "CallForOffers": call_for_offers,
    "Offer": offer,
    "Order": order,
    "Confirmation": confirmation,
    "Shipment": shipment,
    "Invoice": invoice,
}
