"""What the participants of the supply chain send, each in its own words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from both_ways import Participant, Sent

GERMAN = ("Schraube", "Mutter", "Bohrer", "Leim", "Brett", "Farbe", "Pinsel", "Leiter")
ENGLISH = ("screw", "nut", "drill", "glue", "board", "paint", "brush", "ladder")
PORTUGUESE = ("parafuso", "porca", "broca", "cola", "tábua", "tinta", "pincel", "escada")
STREETS = ("Main Street", "Station Road", "Rua Augusta", "Hochschulstraße", "Market Place")
CITIES = ("Darmstadt", "New York", "São Paulo", "Springfield", "Frankfurt am Main")

Words = dict[str, Any]


def participants(step: str) -> list[Participant]:
    """A European distribution centre speaks root, a US supplier its own; Brazil joins."""
    found = [Participant("europe"), Participant("us", "us")]
    return [*found, Participant("brazil", "brazil")] if step == "joined" else found


def events(step: str, count: int, seed: int) -> Iterator[Sent]:
    """Random events of all participants and types."""
    chance = random.Random(seed)
    senders = [each.name for each in participants(step)]
    for number in range(count):
        sender = chance.choice(senders)
        kind = chance.choice([*KINDS] if step == "added" else [*KINDS][:-1])
        yield Sent(sender, *WRITERS[sender](kind, f"{sender}-{number}", chance, step))


KINDS: dict[str, Words] = {
    "CallForOffers": {"addresses": ["delivery"]},
    "Offer": {"refers": "call", "addresses": ["supplier", "delivery"]},
    "Order": {"refers": "offer", "addresses": ["supplier", "delivery", "invoice"]},
    "Confirmation": {"refers": "order", "addresses": ["supplier", "delivery", "invoice"]},
    "Shipment": {"refers": "order", "addresses": ["delivery"], "texts": ["contact", "shipper"]},
    "Invoice": {"refers": "order", "addresses": ["supplier", "invoice"], "numbers": ["total"]},
    "Announcement": {"addresses": ["supplier"], "product": True},
}
"""What each type of events consists of, in European words."""


def _event(kind: str, id: str, chance: random.Random, address: Any, product: Any) -> Words:
    """An event in European words, with addresses and products as the sender writes them."""
    parts = KINDS[kind]
    found: Words = {"id": id}
    if "refers" in parts:
        found[parts["refers"]] = f"ref-{chance.randrange(10_000)}"
    found |= {name: address(chance) for name in parts["addresses"]}
    found |= {name: f"{name} {chance.randrange(100)}" for name in parts.get("texts", ())}
    found |= {name: round(chance.uniform(1, 9_999), 2) for name in parts.get("numbers", ())}
    if "product" in parts:
        return found | {"product": product(chance)}
    lines = [
        {
            "product": product(chance),
            "quantity": chance.randint(1, 500),
            "price": round(chance.uniform(0.1, 99), 2),
        }
        for _ in range(chance.randint(1, 4))
    ]
    return found | {"lines": lines}


def _place(chance: random.Random) -> tuple[str, str, str, str, str]:
    """A name, street, number, postcode and city."""
    person = chance.choice(("Meyer KG", "Acme Inc.", "Silva Ltda."))
    number, code = str(chance.randint(1, 300)), str(chance.randint(10_000, 99_999))
    return person, chance.choice(STREETS), number, code, chance.choice(CITIES)


def _europe(kind: str, id: str, chance: random.Random, step: str) -> tuple[str, Words]:
    def address(chance: random.Random) -> Words:
        names = ("name", "street", "number", "postcode", "city")
        return dict(zip(names, _place(chance), strict=True)) | {"country": "DE"}

    def product(chance: random.Random) -> Words:
        weight = round(chance.uniform(0.01, 30), 3)
        return {"id": "p-7", "description": chance.choice(GERMAN), "weight": weight}

    return kind, _event(kind, id, chance, address, product)


def _us(kind: str, id: str, chance: random.Random, step: str) -> tuple[str, Words]:
    def address(chance: random.Random) -> Words:
        name, street, number, code, city = _place(chance)
        found = {"recipient": name, "line1": f"{number} {street}"}
        if step == "changed":
            return found | {"city": city, "zip": code, "country": "US"}
        return found | {"city_line": f"{city}, {code}", "country": "US"}

    def product(chance: random.Random) -> Words:
        weight = round(chance.uniform(0.01, 70), 2)
        return {"sku": "p-8", "description": chance.choice(ENGLISH), "weight": weight}

    return f"Us{kind}", _event(kind, id, chance, address, product)


IN_BRAZIL = {
    "CallForOffers": "Cotacao",
    "Offer": "Oferta",
    "Order": "Pedido",
    "Confirmation": "Confirmacao",
    "Shipment": "Remessa",
    "Invoice": "Fatura",
    "delivery": "entrega",
    "supplier": "fornecedor",
    "invoice": "cobranca",
    "lines": "linhas",
    "call": "cotacao",
    "offer": "oferta",
    "order": "pedido",
    "contact": "contato",
    "shipper": "transportadora",
}


def _brazil(kind: str, id: str, chance: random.Random, step: str) -> tuple[str, Words]:
    def address(chance: random.Random) -> Words:
        names = ("nome", "logradouro", "numero", "cep", "cidade")
        return dict(zip(names, _place(chance), strict=True)) | {"pais": "BR"}

    def product(chance: random.Random) -> Words:
        weight = round(chance.uniform(10, 30_000), 1)
        return {"codigo": "p-9", "descricao": chance.choice(PORTUGUESE), "gramas": weight}

    event = _event(kind, id, chance, address, product)
    event["lines"] = [
        {"produto": each["product"], "quantidade": each["quantity"], "preco": each["price"]}
        for each in event["lines"]
    ]
    return IN_BRAZIL[kind], {IN_BRAZIL.get(name, name): value for name, value in event.items()}


WRITERS = {"europe": _europe, "us": _us, "brazil": _brazil}
