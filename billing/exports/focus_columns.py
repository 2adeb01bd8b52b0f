"""The columns of FOCUS 1.2 (focus.finops.org) that Penstock fills, and their constant values."""

from billing.exports.columns import Column, ColumnKind

VERSION = "focus/1.2"
PROVIDER = "Penstock"
TAG_PREFIX = "penstock:"
"""Of the names of tags that customers do not choose."""
SERVICE = "Penstock Inference"
CATEGORY = "AI and Machine Learning"
SUBCATEGORY = "Generative AI"
PRICING_UNIT = "1000000 Tokens"
CONSUMED_UNIT = "Tokens"

_T, _A, _D, _I = ColumnKind.TEXT, ColumnKind.AMOUNT, ColumnKind.DECIMAL, ColumnKind.INSTANT

CHARGES: tuple[Column, ...] = tuple(
    Column(name, kind)
    for name, kind in (
        ("BilledCost", _A),
        ("BillingAccountId", _T),
        ("BillingAccountName", _T),
        ("BillingAccountType", _T),
        ("BillingCurrency", _T),
        ("BillingPeriodEnd", _I),
        ("BillingPeriodStart", _I),
        ("ChargeCategory", _T),
        ("ChargeClass", _T),
        ("ChargeDescription", _T),
        ("ChargeFrequency", _T),
        ("ChargePeriodEnd", _I),
        ("ChargePeriodStart", _I),
        ("ConsumedQuantity", _D),
        ("ConsumedUnit", _T),
        ("ContractedCost", _A),
        ("ContractedUnitPrice", _D),
        ("EffectiveCost", _A),
        ("InvoiceId", _T),
        ("InvoiceIssuerName", _T),
        ("ListCost", _A),
        ("ListUnitPrice", _D),
        ("PricingCategory", _T),
        ("PricingQuantity", _D),
        ("PricingUnit", _T),
        ("ProviderName", _T),
        ("PublisherName", _T),
        ("RegionId", _T),
        ("RegionName", _T),
        ("ResourceId", _T),
        ("ResourceName", _T),
        ("ResourceType", _T),
        ("ServiceCategory", _T),
        ("ServiceName", _T),
        ("ServiceSubcategory", _T),
        ("SkuId", _T),
        ("SkuMeter", _T),
        ("SkuPriceDetails", _T),
        ("SkuPriceId", _T),
        ("SubAccountId", _T),
        ("SubAccountName", _T),
        ("SubAccountType", _T),
        ("Tags", _T),
        ("x_Model", _T),
        ("x_Tier", _T),
        ("x_TokenClass", _T),
        ("x_PriceVersion", ColumnKind.INTEGER),
        ("x_Simulated", ColumnKind.BOOLEAN),
        ("x_Gpu", _T),
    )
)
"""Columns of customers' charges."""

_GPU_LEFT_OUT = frozenset(
    {
        "ContractedUnitPrice",
        "ListUnitPrice",
        "ResourceId",
        "ResourceName",
        "ResourceType",
        "RegionId",
        "RegionName",
        "SkuId",
        "SkuMeter",
        "SkuPriceDetails",
        "SkuPriceId",
        "Tags",
        "x_Tier",
        "x_TokenClass",
        "x_PriceVersion",
        "x_Simulated",
        "x_Gpu",
    }
)
GPU: tuple[Column, ...] = (
    *(column for column in CHARGES if column.name not in _GPU_LEFT_OUT),
    Column("x_State"),
)
"""Columns of GPU cost, without unit prices: a share of a host-hour has no published price."""
