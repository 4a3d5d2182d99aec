"""Write scikit-learn's breast cancer data as the tables of five clinics, and as one table of all."""

from sklearn.datasets import load_breast_cancer

frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "label"})
frame["agent"] = [f"clinic-{row % 5}" for row in range(len(frame))]
frame.to_csv("all.csv", index=False)
for name, rows in frame.groupby("agent"):
    rows.drop(columns="agent").to_csv(f"{name}.csv", index=False)
    print(f"{name}.csv: {len(rows)} rows")
